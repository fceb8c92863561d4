"""`make doctor`: what controller and inventory need before anything starts. `controller` imports nothing but Ansible,
so that it can name what is missing; `services` is imported once all is there."""
