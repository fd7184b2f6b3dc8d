#pragma once

namespace dp::test {

// Repeatedly saves one checkpoint in a child process and kills it at a random moment, `times` times. After each kill
// the newest checkpoint must be readable, complete, and at least as new as the last save that returned. The next child
// continues from it. `exchanges`: whether the file system can exchange two folders.
void kill_during_save(int times, bool exchanges);

}  // namespace dp::test
