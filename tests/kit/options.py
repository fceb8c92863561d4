"""Options of actions as their documentation fragments declare them."""

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.argument_specs import fragment_options


def documented(*fragments):
    return {name: option for fragment in fragments for name, option in fragment_options(fragment).items()}


def gang_defaults():
    return {name: option["default"] for name, option in documented("gangs", "gang_members").items()}
