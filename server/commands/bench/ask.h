/// One question of `quire bench`, asked as a client does.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/commands/bench/report.h"
#include "server/commands/client.h"
#include "server/commands/files/interrupt.h"

namespace quire {

/// Returns the whole number of a member; 0: it is missing, or something else.
std::int64_t bench_int(const boost::json::object& o, const char* key);

/// Asks one question and reads the stream of its answer, which is added to `text`. The last event
/// goes to `reply` unless that is null. No value: it was interrupted. Errors: those of the service.
Result<std::optional<BenchSample>> ask_bench(const ClientFlags& flags,
                                             const boost::json::object& body,
                                             const Interrupt& interrupt, std::string& text,
                                             boost::json::object* reply = nullptr);

}  // namespace quire
