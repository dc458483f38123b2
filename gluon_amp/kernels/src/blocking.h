// Moves images with `channels` channels between the plain layout (N, C, H, W) and the blocked one. A value
// has 2 or 4 bytes.
#pragma once

#include "blocked.h"

namespace gluon_amp {

void to_blocked(const void* plain, void* blocked, int64_t channels, const Blocked& shape, int bytes);
void to_plain(const void* blocked, void* plain, int64_t channels, const Blocked& shape, int bytes);

}  // namespace gluon_amp
