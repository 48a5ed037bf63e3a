#include "engine/model/quantisation.h"

#include <boost/json.hpp>
#include <utility>

#include "engine/model/json_fields.h"

namespace quire {

namespace json = boost::json;

Quantisation read_quantisation(JsonFields& in) {
  const std::string method = in.text("quant_method");
  if (method == "gptq" || method == "awq") return read_four_bit_layout(in);
  if (method == "fp8" || method == "compressed-tensors") return read_compressed_layout(in);
  in.unsupported("quant_method",
                 method.empty() ? "is missing; gptq, awq, fp8 and compressed-tensors are supported"
                                : "\"" + method.substr(0, 100) +
                                      "\" is not supported; gptq and awq in four bits, fp8 and "
                                      "compressed-tensors are. Or use the original f32, f16 or "
                                      "bf16 weights with model.weights = w4");
  return {};
}

Result<std::optional<Quantisation>> quantisation_of(std::string_view config_json) {
  QUIRE_ASSIGN_OR_RETURN(const json::object root, parse_json_object("config.json", config_json));
  const json::value* found = root.if_contains("quantization_config");
  if (found == nullptr || !found->is_object()) return std::optional<Quantisation>();
  JsonFields in(found->get_object(), "quantization_config");
  const Quantisation out = read_quantisation(in);
  QUIRE_RETURN_IF_ERROR(in.status());
  return std::optional<Quantisation>(out);
}

std::unique_ptr<WeightSource> quantised_weights(const TensorFolder& folder, std::string location,
                                                const Quantisation& quantisation) {
  if (const auto* four = std::get_if<FourBitLayout>(&quantisation))
    return four_bit_weights(folder, std::move(location), *four);
  return compressed_weights(folder, std::move(location), std::get<CompressedLayout>(quantisation));
}

}  // namespace quire
