"""`stentor book`: read a book aloud into chapters with marks, in runs that may be killed at any
moment and resumed.

1. `reading` opens the file, by its kind, as a `Book` of chapters and blocks.
2. `chapters` chooses what is spoken, and `pieces` cuts it into items of a batch, each with an id
   that depends on its chapter and its place there alone.
3. `stentor.batch` speaks them into OUT.parts/, which its protocol of writes keeps whole.
4. `joining` puts the pieces of a chapter together with their pauses, `loudness` measures and
   levels it, and `writing` encodes it. Each file is written aside, synced and renamed.
5. OUT.parts/ is removed.

A crash before the last rename of step 4: the next run finds all pieces and does the step again,
with the same bytes.
"""
