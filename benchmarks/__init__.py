"""The paper's experiments, run by one command and kept as one table.

`paper.toml` has what is run, `plan` reads it; `tables` and `fits` make data sets, classifiers and
explainers, `e1` to `e6` measure, `store` keeps what jobs find, `running` runs them; `pages`,
`comparison`, `targets` and `drawing` turn the table into Markdown and pictures, `writing` writes
them. `serving`, `batch` and `speed` are measurements of their own.

    python -m benchmarks --pair wine-RF --experiment e2
    python -m benchmarks --render       # only the pages, from what has been run
"""
