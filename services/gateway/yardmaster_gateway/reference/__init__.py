"""The reference of the API: its OpenAPI document, and a page of it for people."""
