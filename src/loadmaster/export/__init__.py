"""Export: plans for other tools and for people's eyes."""
