#include "data/datasets/digit_glyphs.h"

#include <array>

namespace dp {
namespace {

constexpr Pen lift = Pen::lift;
constexpr Pen corner = Pen::corner;

constexpr PenPoint kZeroRound[] = {{.55f, .02f, lift}, {.25f, .12f}, {.05f, .50f}, {.22f, .88f}, {.50f, .99f},
                                   {.80f, .86f},       {.96f, .50f}, {.80f, .14f}, {.50f, .02f}, {.36f, .06f}};
constexpr PenPoint kZeroOpen[] = {{.72f, .10f, lift}, {.40f, .02f}, {.10f, .30f}, {.06f, .65f}, {.30f, .97f},
                                  {.70f, .95f},       {.95f, .60f}, {.90f, .25f}, {.60f, .05f}};
constexpr PenPoint kOnePlain[] = {{.52f, .00f, lift}, {.50f, .50f}, {.50f, 1.0f}};
constexpr PenPoint kOneFlag[] = {{.22f, .25f, lift}, {.58f, .00f, corner}, {.56f, .50f}, {.54f, 1.0f}};
constexpr PenPoint kOneBase[] = {{.25f, .22f, lift}, {.54f, .00f, corner}, {.53f, .50f}, {.52f, .98f},
                                 {.20f, .99f, lift}, {.50f, .98f},         {.85f, .99f}};
constexpr PenPoint kTwoAngled[] = {{.08f, .22f, lift}, {.35f, .02f},         {.75f, .08f}, {.85f, .32f},
                                   {.55f, .62f},       {.05f, .97f, corner}, {.50f, .94f}, {.97f, .96f}};
constexpr PenPoint kTwoLooped[] = {{.08f, .22f, lift}, {.40f, .00f}, {.85f, .18f}, {.70f, .50f}, {.32f, .86f},
                                   {.08f, .94f},       {.07f, .80f}, {.28f, .78f}, {.60f, .94f}, {.97f, .88f}};
constexpr PenPoint kTwoSwung[] = {{.12f, .14f, lift},   {.50f, .00f}, {.90f, .20f}, {.75f, .48f}, {.35f, .76f},
                                  {.08f, .98f, corner}, {.40f, .84f}, {.65f, .98f}, {.98f, .90f}};
constexpr PenPoint kThreeRound[] = {{.10f, .12f, lift}, {.50f, .00f}, {.88f, .20f}, {.70f, .42f}, {.38f, .48f, corner},
                                    {.75f, .55f},       {.95f, .77f}, {.60f, .99f}, {.08f, .90f}};
constexpr PenPoint kThreeFlat[] = {{.10f, .04f, lift}, {.86f, .04f, corner}, {.42f, .40f, corner}, {.80f, .50f},
                                   {.93f, .75f},       {.60f, .98f},         {.08f, .92f}};
constexpr PenPoint kFourOpen[] = {{.24f, .02f, lift}, {.16f, .30f},       {.08f, .58f, corner}, {.50f, .56f},
                                  {.97f, .55f},       {.75f, .06f, lift}, {.72f, .50f},         {.68f, 1.0f}};
constexpr PenPoint kFourClosed[] = {{.64f, .00f, lift}, {.35f, .32f},       {.04f, .66f, corner}, {.50f, .65f},
                                    {.98f, .66f},       {.67f, .00f, lift}, {.67f, .50f},         {.66f, 1.0f}};
constexpr PenPoint kFourCup[] = {{.14f, .04f, lift}, {.08f, .36f},         {.30f, .56f}, {.62f, .50f},
                                 {.84f, .28f},       {.90f, .02f, corner}, {.86f, .50f}, {.80f, 1.0f}};
constexpr PenPoint kFiveOnce[] = {{.90f, .03f, lift}, {.22f, .05f, corner}, {.15f, .42f, corner}, {.50f, .36f},
                                  {.90f, .60f},       {.72f, .93f},         {.35f, .99f},         {.05f, .90f}};
constexpr PenPoint kFiveBar[] = {{.25f, .05f, lift}, {.18f, .43f, corner}, {.55f, .38f}, {.92f, .65f}, {.65f, .96f},
                                 {.08f, .92f},       {.24f, .05f, lift},   {.60f, .05f}, {.96f, .02f}};
constexpr PenPoint kSixSwung[] = {{.75f, .02f, lift}, {.35f, .20f}, {.08f, .60f}, {.25f, .94f}, {.65f, .97f},
                                  {.88f, .72f},       {.60f, .52f}, {.25f, .62f}, {.12f, .78f}};
constexpr PenPoint kSixSteep[] = {{.50f, .00f, lift}, {.20f, .40f}, {.10f, .75f}, {.40f, 1.0f},
                                  {.80f, .88f},       {.80f, .60f}, {.45f, .52f}, {.14f, .70f}};
constexpr PenPoint kSevenPlain[] = {{.05f, .06f, lift}, {.50f, .05f}, {.92f, .04f, corner}, {.60f, .50f}, {.40f, 1.0f}};
constexpr PenPoint kSevenCrossed[] = {{.05f, .06f, lift}, {.50f, .05f},       {.92f, .04f, corner}, {.64f, .45f},
                                      {.45f, 1.0f},       {.25f, .50f, lift}, {.58f, .49f},         {.90f, .47f}};
constexpr PenPoint kSevenHooked[] = {{.07f, .24f, lift},   {.10f, .04f, corner}, {.50f, .06f},
                                     {.93f, .03f, corner}, {.64f, .45f},         {.52f, 1.0f}};
constexpr PenPoint kEightOnce[] = {{.80f, .14f, lift}, {.45f, .00f}, {.15f, .22f}, {.50f, .47f}, {.88f, .74f},
                                   {.50f, 1.0f},       {.10f, .76f}, {.45f, .50f}, {.82f, .26f}, {.74f, .10f}};
constexpr PenPoint kEightLoops[] = {{.50f, .45f, lift}, {.15f, .24f}, {.50f, .00f}, {.85f, .22f}, {.50f, .45f},
                                    {.50f, .46f, lift}, {.08f, .74f}, {.50f, 1.0f}, {.92f, .73f}, {.50f, .46f}};
constexpr PenPoint kNineStraight[] = {{.85f, .18f, lift}, {.50f, .02f},         {.12f, .25f}, {.30f, .52f},
                                      {.68f, .46f},       {.86f, .14f, corner}, {.86f, .50f}, {.80f, 1.0f}};
constexpr PenPoint kNineCurved[] = {{.85f, .18f, lift},   {.50f, .02f}, {.12f, .25f}, {.30f, .52f}, {.68f, .46f},
                                    {.87f, .14f, corner}, {.90f, .55f}, {.70f, .90f}, {.22f, .97f}};
constexpr PenPoint kNineTwice[] = {{.82f, .28f, lift}, {.50f, .02f},       {.12f, .28f}, {.40f, .54f},
                                   {.82f, .28f},       {.85f, .05f, lift}, {.82f, .50f}, {.72f, 1.0f}};

constexpr Glyph kZero[] = {kZeroRound, kZeroOpen};
constexpr Glyph kOne[] = {kOnePlain, kOneFlag, kOneBase};
constexpr Glyph kTwo[] = {kTwoAngled, kTwoLooped, kTwoSwung};
constexpr Glyph kThree[] = {kThreeRound, kThreeFlat};
constexpr Glyph kFour[] = {kFourOpen, kFourClosed, kFourCup};
constexpr Glyph kFive[] = {kFiveOnce, kFiveBar};
constexpr Glyph kSix[] = {kSixSwung, kSixSteep};
constexpr Glyph kSeven[] = {kSevenPlain, kSevenCrossed, kSevenHooked};
constexpr Glyph kEight[] = {kEightOnce, kEightLoops};
constexpr Glyph kNine[] = {kNineStraight, kNineCurved, kNineTwice};
constexpr std::array<std::span<const Glyph>, 10> kDigits{kZero, kOne, kTwo,   kThree, kFour,
                                                         kFive, kSix, kSeven, kEight, kNine};

constexpr bool all_fit() {
  for (const auto& glyphs : kDigits)
    for (const Glyph& glyph : glyphs)
      if (glyph.size() > kMaxPenPoints || glyph.front().pen != Pen::lift) return false;
  return true;
}
static_assert(all_fit());

}  // namespace

std::span<const Glyph> glyphs_of(int digit) { return kDigits[static_cast<std::size_t>(digit)]; }

}  // namespace dp
