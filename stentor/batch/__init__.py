"""`stentor batch`: speak every line of a file, in runs that may be killed at any moment and resumed.

OUT/ holds

    run.json          the settings of the run. A resumed run has the same
    manifest.jsonl    one line per item that has ended, spoken or failed
    audio/ID.wav      one file per item, or instead
    shards/000000.tar many items per file (WebDataset), or shards/000000.parquet
    .work/            audio on its way (in audio-…/), and the shard that is being filled
    .lock             held by the process that writes

**Order of writes.** What the manifest lists is complete and at its place. What a crash leaves elsewhere is spoken again
or taken up by the next run, so each id is in the result once.

One file per item:

1. The audio is written to `.work/audio-…/ID.wav` and synced.
2. It is renamed to `audio/ID.wav`, and the folder is synced. A crash here: it is spoken again, and replaced.
3. Its line is appended to the manifest, and the manifest is synced.

Shards:

1. The audio is written to `.work/audio-…/ID.wav`.
2. It is appended to `.work/N.tar`, followed by its text and by its manifest line with the SHA-256 of the audio. A
   sample counts if its line is there and the SHA-256 is right. The next run cuts off what stands behind the last such
   sample, and goes on filling the same shard.
3. A full shard is synced and renamed to `shards/N.tar`, and the folder is synced.
4. The lines of its samples are appended to the manifest, in one write. A crash before that: the next run reads the last
   shard and appends the lines that are missing.

Parquet: `.work/N.tar` is filled as above. When it is full, its samples are written to `.work/N.parquet`, which is
synced and renamed. Then come the lines of the manifest, and the tar is removed last. A crash in between: it is done
once more.

With `--replicas` the audio on its way is written by other processes. All else is written by the one that was started.

The manifest is only appended to. A torn last line is cut off by the next run. When all has been spoken, the manifest
is written once more in the order of the input, aside, and renamed.
"""
