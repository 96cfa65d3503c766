"""Shortcuts that save most of the run's time, and change nothing that a test sees.

`warm` starts processes, with the interface of `subprocess`. Importing Catchment, DuckDB and Spark
takes longer than most commands run. So one process for each worker of the run (`warm_server`)
imports everything, and forks for every command that a test starts. The fork has its own streams,
folder, environment and exit code; `test_warm` compares it with a cold process.

`lent_jvm` passes a JVM from one warm process to the next. A JVM takes seconds to start. A process
that stops its Spark leaves the JVM running, and the next one with equal settings continues in it.

`made_lakes` copies an empty lake instead of creating one, with new identities and paths.

Tests of a cold start do not use these: see `run_cold` in `tests.acceptance.shell`.
"""
