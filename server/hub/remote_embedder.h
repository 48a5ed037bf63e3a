/// Vectors of texts from another service, in the form of OpenAI's API.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ingest/embed/embedder.h"

namespace quire::hub {

struct RemoteEmbedderOptions {
  std::string url;    ///< of the endpoint: "https://api.openai.com/v1/embeddings"
  std::string model;  ///< sent along; empty: not sent
  std::string key;    ///< bearer token; empty: none
  /// After a failure that took this long, questions are not sent for the other time: each would
  /// wait as long, on a thread that other requests need.
  std::chrono::milliseconds silence{1000}, quiet{15'000};
};

/// Makes the embedder that POSTs texts in batches. Its fingerprint is of URL and model: what they
/// stand for must not change. Texts are sent whole; empty ones have no vector.
///
/// Errors of embed(): kUnavailable (not to be reached, not asked as it was silent lately, or
/// stopped), kDeadlineExceeded, kResourceExhausted (429 or 5xx), kIo (another refusal, or a
/// malformed reply).
std::shared_ptr<Embedder> make_remote_embedder(RemoteEmbedderOptions options);

/// Parses the reply to `count` texts: vectors in the order of the texts, scaled to length 1, all of
/// one size. Errors: kIo.
Result<std::vector<std::vector<float>>> parse_embeddings_reply(std::string_view body,
                                                               std::size_t count);

}  // namespace quire::hub
