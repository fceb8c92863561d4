"""kubernetes_validate, which reads each of its schemas, of megabytes, once."""

import functools

import kubernetes_validate
from kubernetes_validate import utils

utils.schema_contents = functools.cache(utils.schema_contents)
__all__ = ["kubernetes_validate"]
