"""The data of report.html, reduced to the size of a page: each module makes one part of it, pure but for `compared`,
`curves` and `results`, which read the results folder."""
