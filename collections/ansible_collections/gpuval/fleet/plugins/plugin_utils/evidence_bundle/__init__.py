"""Evidence bundles: all that a judgement read, as a folder of files, signed, and judged again offline."""

from importlib.util import find_spec

from ..core.errors import GpuvalError

#: Folders of a bundle.
RUN, DATA, EXTENSIONS = "run", "data", "extensions"


class EvidenceBundleError(GpuvalError):
    """A bundle that cannot be made, sealed, signed or checked; the message has the reason."""


if find_spec("cryptography") is None:
    raise GpuvalError("evidence bundles need the Python library cryptography: pip install cryptography")
