"""Our counterparts of published figures and tables: `python reproduce/run.py`."""
