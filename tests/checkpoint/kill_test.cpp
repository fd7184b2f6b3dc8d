#include "checkpoint/kill_during_save.h"
#include "support/catch.h"

TEST_CASE("a kill at any moment of a save leaves a readable checkpoint, 50 times") {
  dp::test::kill_during_save(50, true);
}

TEST_CASE("a kill during a save leaves a readable checkpoint without atomic exchange, 50 times") {
  dp::test::kill_during_save(50, false);
}
