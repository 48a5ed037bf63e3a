/// Text encoders and cross-encoders of the BERT family (MiniLM, BGE, E5), read from a folder as
/// sentence-transformers writes it, and computed on the CPU.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/encoder/bert.h"
#include "engine/encoder/encoder_config.h"
#include "engine/encoder/wordpiece.h"

namespace quire {

struct EncoderInfo {
  std::string name;             ///< the folder's own name
  std::int64_t dimension = 0;   ///< values of a vector; 0: of a cross-encoder, which has none
  std::int64_t max_tokens = 0;  ///< of a sequence, special ones included
  std::int64_t bytes = 0;       ///< of the weights in memory
  std::string weights;          ///< name of the format they are multiplied in
  /// Of everything that a result depends on: tensors, vocabulary, shapes, pooling, prompts, format.
  Digest fingerprint;
};

/// What a text is: encoders may be trained with different words in front of each (`prompts`).
enum class EncoderRole : std::uint8_t { kQuestion, kText };

/// Turns texts into vectors of length 1, whose inner product is their similarity: the mean of the
/// states behind the last layer, or the first of them (Reimers and Gurevych, "Sentence-BERT", 2019,
/// section 3).
///
/// Immutable; threads: any, each call on threads of its own, apart from the pool of
/// kernels/parallel.h that the engine computes with. Equal sequences give equal vectors, whatever
/// else is in a call.
class TextEncoder {
 public:
  /// Errors: kNotFound, kInvalidArgument, kUnimplemented, kIo; field() is the file or key at fault.
  static Result<std::unique_ptr<TextEncoder>> load(const std::filesystem::path& folder,
                                                   WeightFormat format);

  const EncoderInfo& info() const { return info_; }
  /// Returns the sequence of a text, as long as the text makes it: embed() refuses more than
  /// max_tokens.
  std::vector<std::int32_t> encode(std::string_view text, EncoderRole role) const;
  /// Returns the vectors of sequences, on up to `threads` threads. Errors: kInvalidArgument (a
  /// sequence is empty or longer than max_tokens, or an id unknown).
  Result<std::vector<std::vector<float>>> embed(
      std::span<const std::vector<std::int32_t>> sequences, int threads) const;
  /// Returns the vectors of texts of any length. A text longer than max_tokens is cut into windows
  /// of that length, of which the vector is the mean by their number of tokens. Errors: those of
  /// embed().
  struct Vectors {
    std::vector<std::vector<float>> vectors;  ///< in the order of the texts
    std::int64_t tokens = 0;                  ///< of all windows
  };
  Result<Vectors> embed_texts(std::span<const std::string> texts, EncoderRole role,
                              int threads) const;

 private:
  EncoderConfig config_;
  EncoderInfo info_;
  std::unique_ptr<WordPiece> words_;
  std::unique_ptr<Bert> bert_;
};

/// Scores how well texts answer a question by reading both together: a BERT model with a pooler and
/// one label, such as cross-encoder/ms-marco-MiniLM (Nogueira and Cho, "Passage Re-ranking with
/// BERT", 2019). Threads: as TextEncoder.
class CrossEncoder {
 public:
  /// Errors: as TextEncoder::load().
  static Result<std::unique_ptr<CrossEncoder>> load(const std::filesystem::path& folder,
                                                    WeightFormat format);

  const EncoderInfo& info() const { return info_; }
  struct Scores {
    std::vector<float> values;  ///< logistic function of the label, in the order of the texts
    std::int64_t tokens = 0;    ///< of all sequences
  };
  /// Of what exceeds max_tokens, the end of the longer of question and text is left out.
  Result<Scores> score(std::string_view question, std::span<const std::string> texts,
                       int threads) const;

 private:
  EncoderConfig config_;
  EncoderInfo info_;
  std::unique_ptr<WordPiece> words_;
  std::unique_ptr<Bert> bert_;
  std::vector<float> pooler_, pooler_bias_, label_;  ///< [hidden, hidden], [hidden], [hidden]
  float label_bias_ = 0;
};

}  // namespace quire
