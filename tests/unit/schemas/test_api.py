"""The module of the REST API's bodies, as the gateway and the client import it."""

from pydantic import BaseModel

from yardmaster_schemas import api


def test_every_body_of_the_api_is_listed_as_public() -> None:
    declared = {
        name
        for name, one in vars(api).items()
        if isinstance(one, type) and one.__module__ == api.__name__ and not name.startswith("_")
    }
    models = [name for name in declared if issubclass(getattr(api, name), BaseModel)]
    assert len(models) > 50
    assert declared - set(api.__all__) == set()
    assert [name for name in api.__all__ if not hasattr(api, name)] == []
