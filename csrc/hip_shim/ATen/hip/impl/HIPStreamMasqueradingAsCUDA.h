#pragma once
#include <c10/hip/HIPStream.h>
