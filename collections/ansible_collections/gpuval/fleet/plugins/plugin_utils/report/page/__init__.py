"""The data of report.html, reduced to the size of a page: each module makes one part of it, pure but for `curves`
and `environment`, which read the evidence in the results folder."""
