// The folder of a retrieval head (an EAGLE checkpoint), of any bytes, is refused with a reason or
// gives a head that projects every token of its model.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/model.h"
#include "engine/retrieve/head/retrieval_head.h"

namespace {

using namespace quire;  // NOLINT

std::unique_ptr<Model> small_model() {
  const auto config = parse_model_config(
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":4,)"
      R"("hidden_size":8,"intermediate_size":16,
    "num_attention_heads":1,"num_key_value_heads":1,"vocab_size":11,"max_position_embeddings":64,)"
      R"("rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false})");
  if (!config.ok()) std::abort();
  auto model = make_random_model(*config, ModelOptions{}, 7);
  if (!model.ok()) std::abort();
  return std::move(*model);
}

/// A temporary folder that is removed when the program exits.
struct Folder {
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(const char* name, std::string_view bytes) const {
    std::ofstream(path + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string path = (std::filesystem::temp_directory_path() / "quire-fuzz-XXXXXX").string();
};

/// Removes the bytes up to the next 0xFF, which no JSON holds, from `rest` and returns them.
std::string_view take_text(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\xFF'), rest.size());
  const std::string_view text = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return text;
}

}  // namespace

/// The input is config.json, 0xFF, the header of model.safetensors, 0xFF, its tensors' bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<Model> model = small_model();
  static const Folder folder;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  folder.write("config.json", take_text(rest));
  const std::string_view header = take_text(rest);
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(std::uint64_t{header.size()} >> (8 * i));
  file.append(header).append(rest);
  folder.write("model.safetensors", file);
  const auto head = RetrievalHead::load(folder.path, *model);
  if (!head.ok()) {
    if (head.status().message().empty()) std::abort();
    return 0;
  }
  const RetrievalHeadConfig& config = (*head)->config();
  if (config.hidden_size != 8) std::abort();
  for (const std::int32_t layer : (*head)->feature_layers()) {
    if (layer < 0 || layer >= 4) std::abort();
  }
  const std::vector<std::int32_t> ids = {0, 10, 5};
  const std::vector<float> features(ids.size() * static_cast<std::size_t>((*head)->feature_dim()),
                                    0.5f);
  std::vector<float> queries(ids.size() * static_cast<std::size_t>(config.query_dim())),
      keys(ids.size() * static_cast<std::size_t>(config.key_dim()));
  if (!(*head)->project(ids, features.data(), queries.data(), keys.data()).ok()) std::abort();
  return 0;
}
