/// This file keeps what the service holds in memory out of core files.
#pragma once

namespace quire {

/// Core files of this process then have the registers of its threads and no memory, which holds
/// texts and keys; also those that a handler of the system collects. Where the system does not let
/// a process say so it writes none at all, except to such a handler. Returns false in that case.
/// Threads: call it before others start.
bool keep_memory_out_of_core_files();

}  // namespace quire
