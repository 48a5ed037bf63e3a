#include "engine/model/block_folder.h"

#include <utility>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {

BlockFolder::BlockFolder(const TensorFolder& folder, std::string location)
    : folder_(folder), location_(std::move(location)), values_(file_weights(folder, location_)) {}

void BlockFolder::drop(const WeightTensor& tensor) {
  const auto at = blocks_.find(tensor.name);
  if (at == blocks_.end()) return values_->drop(tensor);
  blocks_.erase(at);
}

std::vector<std::string> BlockFolder::unused() const {
  std::vector<std::string> out = values_->unused();
  std::erase_if(out, [&](const std::string& name) { return used_.contains(name); });
  return out;
}

Result<std::span<const std::byte>> BlockFolder::part(const std::string& name, std::string_view type,
                                                     const std::vector<std::int64_t>& shape) {
  const TensorView view = folder_.find(name);
  if (view.entry == nullptr) return missing(name);
  if (view.entry->dtype_name != type || view.entry->shape != shape) {
    TensorEntry wanted;
    wanted.shape = shape;
    return wrong(view, name, std::string(type) + " " + wanted.shape_text());
  }
  used_.insert(name);
  return view.bytes;
}

Status BlockFolder::missing(const std::string& name) const {
  return Status::invalid(name, location_ + ": tensor " + name +
                                   " is missing; quantization_config says matrices have one");
}

Status BlockFolder::wrong(const TensorView& view, const std::string& name,
                          const std::string& wanted) const {
  return Status::invalid(*view.file, location_ + "/" + *view.file + ": tensor " + name + " is " +
                                         view.entry->dtype_name + " " + view.entry->shape_text() +
                                         ", not " + wanted);
}

WeightTensor BlockFolder::as_blocks(
    const std::string& name, std::int64_t n, std::int64_t k, BlockType type,
    const std::function<void(std::int64_t output, std::int64_t input, std::byte* to)>& write) {
  const std::int64_t bytes = block_bytes(type), per_row = k / kBlockInputs;
  std::vector<std::byte>& out = blocks_[name];
  out.resize(to_size(n * per_row * bytes));
  parallel_for(n, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      for (std::int64_t b = 0; b < per_row; ++b)
        write(c, b * kBlockInputs, out.data() + (c * per_row + b) * bytes);
    }
  });
  WeightTensor tensor{.name = name, .data = out.data(), .shape = {n, k}};
  tensor.num_elements = n * k;
  tensor.blocks = type;
  return tensor;
}

}  // namespace quire
