"""diffusers: UNets with a scheduler's steps, compiled apart and together, and an autoencoder."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMScheduler,
    EulerDiscreteScheduler,
    UNet2DConditionModel,
    UNet2DModel,
)

from .case import Tag, case
from .training import train


def _unet() -> UNet2DModel:
    return UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()


def _conditioned() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=8,
    ).eval()


@case("diffusers", "UNet compiled, DDPM steps plain")
@torch.no_grad()
def denoise(tag: Tag) -> Any:
    unet, scheduler = tag(_unet()), DDPMScheduler(1000)
    scheduler.set_timesteps(4)
    sample = torch.randn(2, 3, 16, 16)
    for time in scheduler.timesteps:
        sample = scheduler.step(unet(sample, time).sample, time, sample).prev_sample
    return sample


def _together(tag: Tag, scheduler: Any) -> Any:
    unet = _conditioned()
    scheduler.set_timesteps(4)
    context = torch.randn(2, 5, 24)

    @tag
    def step(sample: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        noise = unet(scheduler.scale_model_input(sample, time), time, context).sample
        return scheduler.step(noise, time, sample).prev_sample

    sample = torch.randn(2, 4, 16, 16)
    for time in scheduler.timesteps:
        sample = step(sample, time)
    return sample


@case("diffusers", "UNet and DDIM step in one function")
@torch.no_grad()
def ddim(tag: Tag) -> Any:
    return _together(tag, DDIMScheduler(1000))


@case("diffusers", "UNet and Euler step in one function")
@torch.no_grad()
def euler(tag: Tag) -> Any:
    return _together(tag, EulerDiscreteScheduler(1000))


@case("diffusers", "UNet trained on added noise")
def trained(tag: Tag) -> Any:
    unet, scheduler = tag(_unet().train()), DDPMScheduler(1000)
    batches = []
    for _ in range(3):
        times = torch.randint(0, 1000, (2,))
        noisy = scheduler.add_noise(torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16), times)
        batches.append({"sample": noisy, "timestep": times})
    return train(unet, batches, lambda output: output.sample.square().mean())


@case("diffusers", "autoencoder")
@torch.no_grad()
def autoencoder(tag: Tag) -> Any:
    model = AutoencoderKL(block_out_channels=(16,), norm_num_groups=8, latent_channels=4).eval()
    encode, decode = tag(model.encode), tag(model.decode)
    latent = encode(torch.randn(2, 3, 16, 16)).latent_dist
    return latent.mean, decode(latent.mode()).sample
