"""The errors of this package.

```
YardmasterError
  KubernetesError
    QuantityInvalid
```
"""

from yardmaster_schemas.errors import YardmasterError


class KubernetesError(YardmasterError):
    """Kubernetes: {found}."""

    code = "kubernetes"


class QuantityInvalid(KubernetesError):
    """{text!r} is no quantity of Kubernetes. Write a number with an optional suffix,
    as 500m or 2Gi.
    """

    code = "quantity_invalid"
