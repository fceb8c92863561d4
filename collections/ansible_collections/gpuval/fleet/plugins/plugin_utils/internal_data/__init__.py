"""Names, addresses and secrets of a site in texts and documents: they are collected, replaced and searched for here."""
