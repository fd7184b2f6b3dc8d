#pragma once

namespace dp::test {

// Kills a process that saves one checkpoint again and again, `times` times at a random moment. Each time the newest
// checkpoint must be readable, whole, and at least as new as the last save that had returned; the next process goes on
// from it. `exchanges`: whether the file system knows how to exchange two folders.
void kill_during_save(int times, bool exchanges);

}  // namespace dp::test
