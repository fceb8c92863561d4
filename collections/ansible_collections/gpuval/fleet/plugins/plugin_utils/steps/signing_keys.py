"""Make or replace the site's key that signs evidence bundles, and print its public half."""

from pathlib import Path
from typing import Any

from ..evidence_bundle import signing_keys as site_keys
from ..runs.action import RunAction


def signing_keys(action: RunAction, *, state_dir: Path, rotate: bool = False) -> dict[str, Any]:
    path = state_dir / site_keys.PUBLIC_FILE
    if action.check_mode:
        is_needed = rotate or site_keys.read_private_key(state_dir) is None
        action.display.display(f"check mode: {'a key would be made' if is_needed else 'the key exists'}")
        return {"changed": is_needed}
    entry, is_new = site_keys.ensure_key(state_dir, rotate)
    action.display.display(
        f"signing key {entry['keyid']}{'' if is_new else ' (unchanged)'}",
        *entry["public_key"].splitlines(),
        f"give {path} to those who verify, and the keyid by another channel",
    )
    return {"changed": is_new, "keyid": entry["keyid"]}
