"""Placements of the production TPU compiler: extracted, checked, and shipped as data."""

from loadmaster.plan.production.shipped import production_plan, production_record

__all__ = ["production_plan", "production_record"]
