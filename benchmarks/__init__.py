"""The paper's experiments, run by one command and kept as one table.

`paper.toml` lists what is run, `plan` reads it and makes jobs, `jobs` runs and keeps them; `tables`
and `fits` make data sets, classifiers and explainers; `e1` to `e5`, `readings` and `privacy`
measure; `pages`, `comparison`, `claims` and `digits_page` turn figures into Markdown, `drawing`
into pictures, and `rendering` writes them. `survival`, `small_tables` and `learned_rules` are
studies behind constants of the package, `ways` compares two commits, `speed` and `operations`
measure what it costs.

    python -m benchmarks --pair wine-RF --experiment e2
    python -m benchmarks --render       # only the pages, from what has been run
"""
