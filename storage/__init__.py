"""The artifact store: typed Parquet on disk, manifests, DuckDB views, replay, histories, the bridge to MLflow.

It knows tables and files. It knows no models, no prompts, no stage's code and no Prefect.

    data/                                 the data root
      <run>/
        iterations/00003/config.yaml      the configuration the iteration was frozen with
        iterations/00003/current.json     each stage's current fingerprint; replay and views follow it alone
        <stage>/iteration=00003/<fingerprint>/
            manifest.json                 the truth: digests, counts, fingerprint_inputs, timings
            <table>.parquet               one file per table, `name@version` in its footer
            adapter/ target/ ...          adapters or checkpoints of a training stage
            stage.log
        .logs/                            logs of unfinished stages, with why they failed
        .computing/                       locks; a stage that is computed holds its own
        .requests/                        finished requests of unfinished stages
        .checkpoints/                     state of unfinished training stages
        .shards/                          committed shards of unfinished stages (`storage.shards`)
        .staging/                         folders being written; never read
        .lock                             held by the iteration or stage that writes; .current.lock by one change
      .stack/  .mlflow/                   the local servers' homes
      .cache/                             caches of libraries, and the served engines' folders
      .origin                             of a mirror: the URL of its bucket
      .versions/ .incoming/               of a mirror: ETags of copies, and copies that are being brought

`places` is where committed data lies, in these folders or in a bucket. `mirror` says what is where in the latter case.
"""
