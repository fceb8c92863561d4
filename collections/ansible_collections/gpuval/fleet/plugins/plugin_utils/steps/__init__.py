"""Steps of playbooks that work on the controller: `gpuval.fleet.controller` calls the function of a file's name."""
