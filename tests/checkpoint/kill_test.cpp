#include "checkpoint/kill_during_save.h"
#include "support/catch.h"

TEST_CASE("S24, F7: a kill at any moment of a save leaves a readable checkpoint, 50 times") {
  dp::test::kill_during_save(50, true);
}

TEST_CASE("S24, F7: the same where the file system knows no exchange") { dp::test::kill_during_save(50, false); }
