#pragma once
#include <c10/hip/HIPException.h>
#include <c10/hip/HIPStream.h>
