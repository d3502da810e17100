// A decoded NV12 frame to the planes of a network's input, in one kernel: scaled by area, letterboxed, coloured,
// normalised. One thread a pixel of the input. NVRTC compiles it for the GPU that is here; a test compiles it as C++.

// The mean of a plane over a box that may begin and end within pixels. step: bytes from pixel to pixel.
static __device__ float area_mean(const unsigned char* plane, long long pitch, int step, int width, int height,
                                  float x0, float x1, float y0, float y1)
{
    int left = (int)x0, right = (int)ceilf(x1), top = (int)y0, bottom = (int)ceilf(y1);
    left = left < width ? left : width - 1;
    top = top < height ? top : height - 1;
    right = right > width ? width : (right > left ? right : left + 1);
    bottom = bottom > height ? height : (bottom > top ? bottom : top + 1);
    float sum = 0.0f, weight = 0.0f;
    for (int y = top; y < bottom; ++y) {
        float high = fminf(y1, (float)(y + 1)) - fmaxf(y0, (float)y);
        for (int x = left; x < right; ++x) {
            float share = high * (fminf(x1, (float)(x + 1)) - fmaxf(x0, (float)x));
            sum += share * (float)plane[y * pitch + (long long)x * step];
            weight += share;
        }
    }
    return weight > 0.0f ? sum / weight : (float)plane[top * pitch + (long long)left * step];
}

static __device__ void store(void* out, long long at, float value, int half_floats)
{
#ifdef __CUDACC_RTC__
    if (half_floats) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        ((unsigned short*)out)[at] = bits;
        return;
    }
#endif
    ((float*)out)[at] = value;
}

extern "C" __global__ void nv12_letterbox(
    const unsigned char* luma, long long luma_pitch, const unsigned char* chroma, long long chroma_pitch,
    int frame_width, int frame_height, int left, int top, int laid_width, int laid_height,
    int input_width, int input_height, float luma_gain, float luma_low, float red_v, float green_u, float green_v,
    float blue_u, float gain0, float gain1, float gain2, float bias0, float bias1, float bias2, float grey, int rgb,
    int half_floats, void* out)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= input_width || y >= input_height)
        return;
    float red = grey, green = grey, blue = grey;
    int column = x - left, row = y - top;
    if (column >= 0 && column < laid_width && row >= 0 && row < laid_height) {
        float across = (float)frame_width / (float)laid_width, down = (float)frame_height / (float)laid_height;
        float x0 = column * across, x1 = (column + 1) * across, y0 = row * down, y1 = (row + 1) * down;
        int half_width = (frame_width + 1) / 2, half_height = (frame_height + 1) / 2;
        float bright = luma_gain * (area_mean(luma, luma_pitch, 1, frame_width, frame_height, x0, x1, y0, y1) - luma_low);
        float u = area_mean(chroma, chroma_pitch, 2, half_width, half_height, x0 / 2, x1 / 2, y0 / 2, y1 / 2) - 128.0f;
        float v = area_mean(chroma + 1, chroma_pitch, 2, half_width, half_height, x0 / 2, x1 / 2, y0 / 2, y1 / 2) - 128.0f;
        red = fminf(fmaxf(bright + red_v * v, 0.0f), 255.0f);
        green = fminf(fmaxf(bright - green_u * u - green_v * v, 0.0f), 255.0f);
        blue = fminf(fmaxf(bright + blue_u * u, 0.0f), 255.0f);
    }
    long long plane = (long long)input_width * input_height, at = (long long)y * input_width + x;
    store(out, at, (rgb ? red : blue) * gain0 + bias0, half_floats);
    store(out, at + plane, green * gain1 + bias1, half_floats);
    store(out, at + 2 * plane, (rgb ? blue : red) * gain2 + bias2, half_floats);
}
