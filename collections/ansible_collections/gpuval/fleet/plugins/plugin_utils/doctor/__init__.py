"""`make doctor`: checks what controller and inventory need before a run. `controller` imports nothing but Ansible, so
that it can name missing packages; `services` is imported once none is missing."""
