"""Speed on this machine: what averages cost beside the memory limit, and beside other libraries, in interleaved runs.

`emabank bench` for a user, and the parts that the suite in benchmarks/ is made of. Uses the library's public names and
the study's networks and loop; nothing of ours imports it but the command.
"""
