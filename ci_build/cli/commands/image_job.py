"""One run of an image command.

Its options, its image builder, its dry run, and the steps after a build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ci_build.cli.common import State, connector, host_runner, print_json, show_plan
from ci_build.cli.options.container_options import (
    check_images,
    container_engine,
    image_mirrors,
    registry_problems,
)
from ci_build.images import engine_images as local
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import PINS, load_pins
from ci_build.images.image_recipe import UNKNOWN, Recipe, describe
from ci_build.images.manylinux_image import SEARCH, planned_look_ups
from ci_build.images.runtime import image_contents
from core.errors import RequestError
from core.process import render


class ImageJob:
    """One run of an image command; its creation reads the options and starts no process.

    Args:
        values: values of the command's options.
        count: number of images to build, for which `check` is called; None if it is not
            known yet.

    Attributes:
        settings: values with their origins, the environment and the defaults.

    Raises:
        RequestError: images.toml cannot be read, an image or engine has an impossible
            name, or `check` refuses an option.
    """

    def __init__(
        self, state: State, values: Mapping[str, Any], *, count: int | None = None
    ) -> None:
        self.values = values
        self.settings = state.settings(values)
        self.reporter = state.reporter(values)
        check_images(self.settings)
        self.builder = ImageBuilder(
            pins=load_pins(values.get("pins") or PINS),
            cache=self.settings.cache_dir,
            host=host_runner(self.reporter),
            progress=self.reporter,
            connect=connector(self.reporter),
            engine_name=container_engine(self.settings),
            builder_image=str(self.settings.get("builder_image").value or ""),
            base=str(self.settings.get("base_docker").value or ""),
            registry=str(self.settings.get("image_registry").value or ""),
            mirrors=image_mirrors(self.settings),
            no_cache=bool(values.get("no_cache")),
            dry_run=bool(values.get("dry_run")),
        )
        if count is not None:
            self.check(count)

    @property
    def dry_run(self) -> bool:
        """The option --dry-run: show a plan instead of building images."""
        return bool(self.values["dry_run"])

    def check(self, count: int, *, finds_bases: bool = False) -> None:
        """Check the options of a run that builds this number of images.

        Args:
            finds_bases: whether the base images are built images, which are searched in
                the registry.

        Raises:
            RequestError: --tag is not an image name, or one name is given for several
                images; --push is given without a registry; --no-cache, --image-registry
                or --image-mirror has no effect.
        """
        if self.values["tag"]:
            local.check_name(self.values["tag"], "--tag")
            if count != 1:
                raise RequestError(
                    f"--tag is one name, but {count} images will be built.",
                    hint="Select one with --filter.",
                )
        if self.values["push"] and not self.builder.registry:
            hint = "Give --image-registry, or set CI_BUILD_IMAGE_REGISTRY."
            raise RequestError("--push needs a registry.", hint=hint)
        if self.builder.builder_image and self.builder.no_cache:
            raise RequestError(
                "--no-cache has no effect with --builder-image.",
                hint="Omit one of them.",
            )
        found = finds_bases or self.builder.builder_image == SEARCH
        problems = registry_problems(
            self.settings, pulls=not found, searches=found or self.values["push"]
        )
        if problems:
            raise RequestError(" ".join(problems), hint="Omit the option.")

    def build(
        self, recipes: Sequence[Recipe], bases: Sequence[Recipe], *, title: str
    ) -> None:
        """Build, tag and push images, or print the plan in a dry run."""
        if self.dry_run:
            self.show_plan(
                {recipe.tag: (recipe.name,) for recipe in recipes}, [*bases, *recipes]
            )
            return
        with self.reporter.group(title):
            built = [
                (self.builder.build(recipe), (recipe.name,), recipe.labels)
                for recipe in recipes
            ]
        self.finish(built)

    def show_plan(
        self, images: Mapping[str, Sequence[str]], recipes: Sequence[Recipe]
    ) -> None:
        """Print the steps of a run that builds or looks up images, tags them and pushes them.

        Args:
            images: name of each image with its content as tag -> its further names,
                besides --tag.
            recipes: recipes of the images and of their bases, bases first; empty for a
                builder image that is not built.
        """
        if self.values["json"]:
            print_json(
                [
                    {"name": next(iter(names), tag.removesuffix(f":{UNKNOWN}"))}
                    for tag, names in images.items()
                ]
            )
        builder = self.builder
        if recipes:
            self.show(*describe(recipes, builder.engine, no_cache=builder.no_cache))
        else:
            self.show(*planned_look_ups(builder))
        for tag, names in images.items():
            names = (*names, *([self.values["tag"]] if self.values["tag"] else []))
            if names:
                self.show(
                    f"tag {tag}",
                    *(
                        f"  $ {render(local.tag_argv(builder.engine, tag, name))}"
                        for name in names
                    ),
                )
            if self.values["push"]:
                self.show(f"push {tag} to {builder.registry}")
                for reference in (
                    f"{builder.registry}/{name}" for name in (tag, *names)
                ):
                    self.show(
                        f"  $ {render(local.tag_argv(builder.engine, tag, reference))}"
                    )
                    self.show(
                        f"  $ {render(local.push_argv(builder.engine, reference))}"
                    )

    def show(self, *lines: str) -> None:
        """Print lines of a dry run on standard output; with --json, on standard error."""
        if self.values.get("json"):
            for line in lines:
                self.reporter.line(line)
        else:
            show_plan(lines, as_json=False)

    def finish(
        self, built: Sequence[tuple[ContainerImage, tuple[str, ...], Mapping[str, str]]]
    ) -> None:
        """Tag, push and report images.

        Args:
            built: images with their default names and their labels.
        """
        receipts = []
        for image, names, labels in built:
            contents = image_contents(names[0] if names else image.name, labels)
            names = (*names, *([self.values["tag"]] if self.values["tag"] else []))
            for name in names:
                local.tag(self.builder.engine, self.builder.host, image.id, name)
            pushed = self.builder.push(image, names) if self.values["push"] else ""
            facts = {
                "name": image.name,
                "digest": image.digest,
                "built": image.built,
                "id": image.id,
            }
            receipts.append({**facts, "tags": names, "pushed": pushed, **contents})
            state = "built" if image.built else "exists"
            self.reporter.line(
                f"{image.name} {state}: {image.digest}"
                + "".join(f", {name}" for name in names)
            )
            if pushed:
                self.reporter.line(f"pushed {pushed}")
        if self.values["json"]:
            print_json(receipts)
