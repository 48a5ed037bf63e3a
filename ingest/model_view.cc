#include "ingest/model_view.h"

#include "ingest/block_list.h"

namespace quire {

Result<std::vector<BlockInfo>> ModelView::blocks(std::string_view ns, std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(const DocumentManifest manifest, renditions_.get(ns, id, nullptr));
  QUIRE_ASSIGN_OR_RETURN(const std::string text, store_.get_text(ns, id));
  return list_blocks(store_, engine_, manifest, text, options_.tenant(ns));
}

}  // namespace quire
