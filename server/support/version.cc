#include "server/support/version.h"

#include <quire_commit.h>

#ifndef QUIRE_VERSION
#define QUIRE_VERSION "0.0.0"
#endif
#ifndef QUIRE_BUILD_TYPE
#define QUIRE_BUILD_TYPE "unknown"
#endif

namespace quire {
std::string_view version() { return QUIRE_VERSION; }
std::string_view build_commit() { return QUIRE_COMMIT; }
std::string_view build_description() { return "g++ " __VERSION__ ", " QUIRE_BUILD_TYPE; }
}  // namespace quire
