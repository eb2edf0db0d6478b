"""Time the operations of an engine step on the device at hand and keep them as calibration tables.

`request` says what is wanted, `points` which sizes in which order, `operations` how each is run, `timing`
how it is timed, `tables` in which form it is kept, `session` puts them together. Only `device`, `timing`,
`operations` and `session` need torch, and import it when a device is opened.
"""
