"""The fleet's network as the controller sees it: who asks whom, and what the answers say."""
