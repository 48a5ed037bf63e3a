/// Files of a form: a reader makes documents of them, as `quire ingest` does.
#pragma once

#include <optional>
#include <vector>

#include "readers/reader_process.h"
#include "server/handlers/common.h"
#include "server/hub/file_fetch.h"
#include "server/json/document_request.h"
#include "server/support/problem.h"

namespace quire {

/// Reads the batch's files, each in a child process, fetches first what is on the web, and puts
/// their documents in the place of the files. An id comes from the file's name or address unless
/// one is given. Documents that are best cut at headings become a batch of their own unless the
/// caller chose how to cut.
///
/// Returns the batches, none of which is empty; DocumentBatch::places says how their documents were
/// mixed in the call. It blocks for as long as the reader is allowed to
/// take for each file, and asks `why_stop` before each. On a file that cannot be read it sets
/// `problem` (a 4xx that names the file) and returns none.
std::vector<DocumentBatch> read_uploaded_files(const ReaderProcess& reader,
                                               const hub::FetchRules& rules, DocumentBatch batch,
                                               const WhyStop& why_stop,
                                               std::optional<Problem>& problem);

}  // namespace quire
