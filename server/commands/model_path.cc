#include "server/commands/model_path.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace quire {
namespace fs = std::filesystem;

Result<std::string> find_model_path(const std::string& asked) {
  std::error_code ec;
  if (!asked.empty()) {
    if (!fs::is_directory(asked, ec)) return Status::not_found("no model folder at " + asked).with_field("model.path");
    return asked;
  }
  if (const char* dir = std::getenv("QUIRE_MODEL_DIR"); dir && *dir) {
    if (!fs::is_directory(dir, ec)) return Status::not_found("QUIRE_MODEL_DIR names " + std::string(dir) + ", which is no folder").with_field("model.path");
    return std::string(dir);
  }
  const fs::path binary = fs::read_symlink("/proc/self/exe", ec);
  const fs::path folder = binary.parent_path();
  std::string looked;
  for (const auto* relative : {"../../models/demo", "../share/quire/models/demo", "models/demo", "../models/demo"}) {
    const fs::path candidate = (folder / relative).lexically_normal();
    if (fs::is_regular_file(candidate / "config.json", ec)) return candidate.string();
    looked += "\n  " + candidate.string();
  }
  return Status::not_found("the embedded model was not found; set model.path (or QUIRE_MODEL_DIR) to a Hugging Face model folder. Looked at:" + looked).with_field("model.path");
}

std::string find_model_part(const std::string& asked, const std::string& model_path, const std::string& part) {
  if (asked == "none") return "";
  if (!asked.empty()) return asked;
  const fs::path folder = fs::path(model_path) / part;
  std::error_code ec;
  return fs::is_regular_file(folder / "config.json", ec) ? folder.string() : "";
}

int complain(const std::string& message) {
  std::fprintf(stderr, "quire: %s\n", message.c_str());
  return 1;
}

int complain(const Status& status) {
  const std::string field = status.field().empty() || status.message().find(status.field()) != std::string::npos ? "" : status.field() + ": ";
  return complain(field + status.message());
}

}  // namespace quire
