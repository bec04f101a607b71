"""`stentor batch`: speak every line of a file, in runs that may be killed at any moment and
resumed.

OUT/ holds

    run.json          the settings of the run. A resumed run has the same
    manifest.jsonl    one line per item that has ended, spoken or failed
    audio/ID.wav      one file per item, or instead
    shards/000000.tar many items per file (WebDataset), or shards/000000.parquet
    .work/            audio on its way (in audio-…/), and in 000000/ the shard that is being filled
    .lock             held by the process that writes

**Order of writes.** What the manifest lists is complete and at its place. What a crash leaves
elsewhere is spoken again or taken up by the next run, so each id is in the result once.

1. The audio is written to `.work/audio-…/ID.wav` and synced.
2. It is renamed: to `audio/ID.wav`, and the folder is synced. A crash here: it is spoken again, and
   replaced.
3. Its line is appended to the manifest, and the manifest is synced.

Shards are packed from such files. In step 2 the audio is renamed to `.work/N/ID.wav`, and its line
is appended to `.work/N/rows.jsonl`, with its text. The next run takes up each item whose line and
audio are whole, by its SHA-256. When `.work/N` is full,

1. it is synced, and its samples are written to `.work/N.tar` or `.work/N.parquet`, which is synced
   and renamed to `shards/`. The folder is synced. A crash before the rename: it is done once more.
2. The lines of its samples are appended to the manifest, in one write. A crash before that: the
   next run appends those that are missing, as the shard is there.
3. `.work/N` is removed.

With `--replicas` the audio on its way is written by other processes. All else is written by the one
that was started.

The manifest is only appended to. A torn last line is cut off by the next run. When all has been
spoken, the manifest is written once more in the order of the input, aside, and renamed.
"""
