// What was built: for the record of a measurement.
#pragma once

namespace dp_bench {

extern const char* const
    kCommit;  // with "-dirty" where files differed; "unknown" outside a clone. commit.cmake writes it

}  // namespace dp_bench
