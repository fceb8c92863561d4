"""What report.html shows, cut down to what a page can carry: each module makes one part of it, pure but for `curves`
and `environment`, which read the evidence in the results folder."""
