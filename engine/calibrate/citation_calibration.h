/// Calibration of the confidence of citations to a model's own answers, and where the result is
/// kept.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"
#include "cachestore/store.h"
#include "engine/answer/citation_confidence.h"

namespace quire {

/// What the words say about one document as the source of one sentence of an answer.
struct CitationExample {
  std::size_t question = 0, sentence = 0;  ///< numbers that tell questions and sentences apart
  ContextEvidence evidence;
  bool right = false;  ///< the document supports the right answer
};

/// Fits both logistic regressions by Newton's method, with a ridge of 1 on all but the constants.
CitationConfidence fit_citation_confidence(std::span<const CitationExample> examples);

/// How well a confidence tells right documents from others.
struct CitationQuality {
  double loss = 0;        ///< mean negative log-likelihood of an example, nats
  std::size_t named = 0;  ///< documents that a rule with the usual least confidences would name
  std::size_t right = 0;  ///< those of them that support the right answer
};

struct CitationCalibration {
  CitationConfidence confidence;
  std::size_t questions = 0;
  /// On questions that the constants were not fitted to (five folds), and by fitted_confidence().
  CitationQuality fitted, before;
};

/// Fits to all examples, and measures by cross-validation over questions. Errors:
/// kFailedPrecondition (fewer than kLeastCitationQuestions questions with a right and a wrong
/// document; the constants do no better than fitted_confidence() on questions left out).
inline constexpr std::size_t kLeastCitationQuestions = 20;
Result<CitationCalibration> calibrate_citations(std::span<const CitationExample> examples);

/// Returns the name of the model's record in the store: "citation-confidence/" and the hex
/// fingerprint.
std::string citation_confidence_record(const Digest& fingerprint);
Status save_citation_confidence(Store& store, const Digest& fingerprint,
                                const CitationConfidence& confidence);
/// Forgets it, so that fitted_confidence() counts again. Errors: kIo.
Status drop_citation_confidence(Store& store, const Digest& fingerprint);
/// Errors: kNotFound (never calibrated), kCorruption, kIo.
Result<CitationConfidence> load_citation_confidence(Store& store, const Digest& fingerprint);

/// Text of a record: version 1, the four constants by words, the four by title.
std::string encode_citation_confidence(const CitationConfidence& confidence);
/// Errors: kCorruption (another version; not eight finite numbers, each at most 1,000 in size).
Result<CitationConfidence> decode_citation_confidence(std::string_view text);

}  // namespace quire
