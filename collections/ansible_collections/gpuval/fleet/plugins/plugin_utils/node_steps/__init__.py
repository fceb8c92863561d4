"""Steps of nodes: each file has a function of its name, the half on the controller; options are its parameters."""
