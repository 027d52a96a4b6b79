"""The plain class behind a Ray actor class: Ray refuses to subclass the decorated one."""

from typing import Any


def raw_class(actor_class: Any) -> type:
    """The class that `ray.remote` decorated. Raises AttributeError when Ray has moved it (the seam test says so)."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
